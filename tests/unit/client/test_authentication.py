"""A client logs in to brokers that know its user, and tells others from them."""

import pytest
from scramp import ScramMechanism

from memq.client.authentication import authenticate
from memq.client.security import Security
from memq.core.access.users import MECHANISM, SALT_BYTES, new_user
from memq.core.wire.messages import AuthenticateAnswer
from memq.errors import ConfigError, UnauthorizedError

PASSWORD = "correct horse"  # noqa: S105 - of nobody
USER = new_user("alice", PASSWORD, bytes(SALT_BYTES))
ALICE = Security(user="alice", password=PASSWORD)


class Broker:
    """The other side; what it says may be changed."""

    def __init__(self, stored=USER, iterations=USER.iterations, change=lambda _, said: said):
        keys = (stored.salt, stored.stored_key, stored.server_key, iterations)
        self.server = ScramMechanism(MECHANISM).make_server(lambda _: keys)
        self.change = change
        self.heard = []

    async def ask(self, step):
        self.heard.append(step.data.decode())
        if len(self.heard) == 1:
            self.server.set_client_first(self.heard[-1])
            said = self.server.get_server_first()
        else:
            self.server.set_client_final(self.heard[-1])
            said = self.server.get_server_final()
        said = self.change(len(self.heard), said)
        return AuthenticateAnswer(data=said.encode(), principal="User:alice")


async def test_the_password_is_not_sent():
    """Both sides prove that they know what was made of it."""
    broker = Broker()
    assert (await authenticate(ALICE, [MECHANISM], broker.ask)).principal == "User:alice"
    assert not any(PASSWORD in each for each in broker.heard)


@pytest.mark.parametrize(
    "broker",
    [
        Broker(new_user("alice", PASSWORD, b"s" * SALT_BYTES), iterations=4_096),
        Broker(change=lambda step, said: "v=" + "A" * 43 + "=" if step == 2 else said),
        Broker(change=lambda step, said: "e=other-error" if step == 2 else said),
        Broker(change=lambda step, said: said.replace("r=", "r=x") if step == 1 else said),
        Broker(change=lambda _, said: "\u00e9" + said),
    ],
    ids=["few iterations", "no proof", "an error", "another nonce", "nonsense"],
)
async def test_who_does_not_know_the_user_is_no_broker(broker):
    """Nor one that asks for a proof that would be easy to try passwords on."""
    with pytest.raises(UnauthorizedError, match="it does not know the password of user 'alice'"):
        await authenticate(ALICE, [MECHANISM], broker.ask)


async def test_few_iterations_get_no_proof():
    """The client stops before it says anything that was made of the password."""
    broker = Broker(iterations=4_096)
    with pytest.raises(UnauthorizedError, match="4096 iterations only"):
        await authenticate(ALICE, [MECHANISM], broker.ask)
    assert len(broker.heard) == 1


@pytest.mark.parametrize(
    ("security", "mechanisms", "error", "said"),
    [
        (Security(), [MECHANISM], UnauthorizedError, "it asks who you are"),
        (ALICE, ["OTHER"], UnauthorizedError, "it takes OTHER"),
        (ALICE, [], UnauthorizedError, "it does not ask who you are"),
        (Security(aws_iam="a"), [], UnauthorizedError, "it does not ask who you are"),
        (Security(aws_iam="a"), [MECHANISM], UnauthorizedError, "this client has AWS-IAM"),
        (Security(user="a", password_file="/none"), [MECHANISM], ConfigError, "/none"),
        (Security(user="a", password="\u0001"), [MECHANISM], ConfigError, "cannot be a user"),
    ],
)
async def test_what_cannot_be_a_login_is_none(security, mechanisms, error, said):
    """The error says what to give."""
    with pytest.raises(error, match=said):
        await authenticate(security, mechanisms, None)
