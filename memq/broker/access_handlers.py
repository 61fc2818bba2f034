"""What the broker does with the requests about users, rules and quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.access.rules import Question, check_principal
from memq.core.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.access_control import AccessControl, AccessStore
    from memq.core.access.document import AccessDocument


class AccessHandlers:
    """Answers them.

    Args:
        control: users and rules that hold.
        store: where they are stored.
        waited_s: tells for how long clients had to wait, by quota and limit.
    """

    def __init__(
        self,
        control: AccessControl,
        store: AccessStore,
        waited_s: Callable[[], dict[str, dict[str, float]]],
    ) -> None:
        self._control = control
        self._waited_s = waited_s
        self._store = store

    def __repr__(self) -> str:
        return f"<AccessHandlers {self._store!r}>"

    async def list_users(self, request: m.ListUsers) -> m.ListUsersAnswer:  # noqa: ARG002 - has no fields
        """List the users."""
        self._control.check_has_a_say()
        return m.ListUsersAnswer(users=sorted(self._control.document.users))

    async def put_user(self, request: m.PutUser) -> m.Done:
        """Create a user, or replace its verifier."""
        await self._change(lambda now: now.with_user(request.user, replace=request.replace))
        return m.Done()

    async def delete_user(self, request: m.DeleteUser) -> m.Done:
        """Delete a user."""
        await self._change(lambda now: now.without_user(request.name))
        return m.Done()

    async def list_rules(self, request: m.ListRules) -> m.ListRulesAnswer:  # noqa: ARG002 - as above
        """List the rules."""
        self._control.check_has_a_say()
        return m.ListRulesAnswer(rules=[*self._control.document.rules])

    async def alter_rules(self, request: m.AlterRules) -> m.AlterRulesAnswer:
        """Remove rules, and add others."""
        counts = m.AlterRulesAnswer(added=0, removed=0)

        def edit(now: AccessDocument) -> AccessDocument:
            edited = now.with_rules(request.add, request.remove)
            before, after = set(now.rules), set(edited.rules)
            counts.added, counts.removed = len(after - before), len(before - after)
            return edited

        await self._change(edit)
        return counts

    async def check_access(self, request: m.CheckAccess) -> m.CheckAccessAnswer:
        """Say whether a principal may do something, and which rule decides.

        Raises:
            InvalidRequestError: the principal is none.
        """
        self._control.check_has_a_say()
        check_principal(request.principal)
        asked = Question(request.operation, request.type, request.name)
        decision = self._control.all_rules.decide(request.principal, request.host, asked)
        return m.CheckAccessAnswer(allowed=decision.allowed, why=decision.why)

    async def list_quotas(self, request: m.ListQuotas) -> m.ListQuotasAnswer:  # noqa: ARG002 - as above
        """List the quotas."""
        self._control.check_has_a_say()
        return m.ListQuotasAnswer(quotas=self._control.document.quotas, waited_s=self._waited_s())

    async def alter_quota(self, request: m.AlterQuota) -> m.Done:
        """Set limits of a quota."""
        await self._change(lambda now: now.with_quota(request.holder, request.limits))
        return m.Done()

    async def _change(self, edit: Callable[[AccessDocument], AccessDocument]) -> None:
        self._control.check_has_a_say()
        await self._store.change(edit)
