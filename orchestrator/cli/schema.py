"""The JSON schema of the files that people write."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from orchestrator.cli.options import DONE, print_json


def schema(
    kind: Annotated[
        Literal["sweep", "branch"],
        typer.Argument(metavar="[sweep|branch]", help="The kind of file that it describes."),
    ] = "sweep",
) -> int:
    """Print the JSON schema of sweep files or branch files, for an editor to check them by."""
    from orchestrator.planning.schema import schema_of

    print_json(schema_of(kind))
    return DONE
