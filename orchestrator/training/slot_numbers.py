"""The metaparameters of all slots of a stack as tensors, and the numbers that update rules derive
from them for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from orchestrator.training.rules import Numbers, Rule, numbers_of
from orchestrator.training.tenant import Tenant, number


class SlotNumbers:
    """The numbers of all slots. They are valid as long as the same trials are in the slots. Empty
    slots get the numbers of another slot."""

    def __init__(
        self, rule: Rule, tenants: Sequence[Tenant | None], like: Tensor, of_loss: Sequence[str]
    ) -> None:
        first = next(tenant for tenant in tenants if tenant is not None)
        self._rule, self._like = rule, like
        self._tenants = [tenant or first for tenant in tenants]
        self._constants = numbers_of([rule.constants(t.params) for t in self._tenants], like)
        self.loss = {
            name: like.new_tensor([number(t.settings.loss[name]) for t in self._tenants])
            for name in of_loss
        }
        """Metaparameters of the loss, each a tensor [slots]."""
        self.modifiers = numbers_of([_of_modifiers(tenant) for tenant in self._tenants], like)
        """`gradient_clip`, and the `share` of each step in averages of weights, each a tensor
        [slots, 1]."""
        self._steady = self._steady_numbers()

    def of_steps(self, count: int) -> Callable[[int], Numbers]:
        """Returns a function from 0, ..., `count` - 1 to the rule's numbers in the next steps."""
        if (steady := self._steady) is not None:
            return lambda step: steady
        rows = [
            [
                self._rule.moving(tenant.params, tenant.rate(step), step + 1)
                for step in range(tenant.step, tenant.step + count)
            ]
            for tenant in self._tenants
        ]
        tables = {
            name: self._like.new_tensor(
                [[[row[step][name]] for row in rows] for step in range(count)]
            )
            for name in rows[0][0]
        }
        constants = self._constants
        return lambda step: {**constants, **{name: t[step] for name, t in tables.items()}}

    def _steady_numbers(self) -> Numbers | None:
        """Returns the numbers that are the same in every step; None if a slot has a schedule or the
        rule depends on the number of steps."""
        first, second = (
            [self._rule.moving(t.params, t.params["learning_rate"], step) for t in self._tenants]
            for step in (1, 2)
        )
        if first != second or any(tenant.factor is not None for tenant in self._tenants):
            return None
        return {**self._constants, **numbers_of(first, self._like)}


def _of_modifiers(tenant: Tenant) -> dict[str, float]:
    modifiers, numbers = tenant.settings.modifiers, dict[str, float]()
    if modifiers.gradient_clip is not None:
        numbers["gradient_clip"] = modifiers.gradient_clip
    if modifiers.ema_decay is not None:
        numbers["share"] = 1 - modifiers.ema_decay
    return numbers
