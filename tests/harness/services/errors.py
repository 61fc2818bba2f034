"""What goes wrong with a real service."""


class ServiceError(Exception):
    """A service ended by itself, or did not serve in time."""


class JarError(ServiceError):
    """The jars of a service are not those that are pinned."""


class ServiceUnavailableError(ServiceError):
    """This machine cannot run a service: it lacks Java, or its jars, and cannot get them.

    Attributes:
        service: that is wanted.
        reason: why it cannot be had.
    """

    def __init__(self, service: str, reason: str) -> None:
        super().__init__(f"{service} cannot be run: {reason}")
        self.service = service
        self.reason = reason
