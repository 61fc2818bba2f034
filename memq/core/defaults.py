"""What holds unless somebody says otherwise, and the variables by which the machine says it."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 6367  # M-E-M-Q on a phone pad
DEFAULT_ADMIN_PORT = 6368
DEFAULT_BOOTSTRAP = f"{DEFAULT_HOST}:{DEFAULT_PORT}"  # where `memq dev` listens
BOOTSTRAP_VARIABLE = "MEMQ_BOOTSTRAP"
ZONE_VARIABLE = "MEMQ_ZONE"
STORAGE_OPTIONS_VARIABLE = "MEMQ_STORAGE_OPTIONS"
SECURITY_VARIABLE = "MEMQ_SECURITY"
TOKEN_VARIABLE = "MEMQ_TOKEN"  # noqa: S105 - the name of a variable
GLUE_ARGUMENTS = "--memq_arguments"  # by which AWS Glue passes a Spark program its own
DEFAULT_ASSIGNOR = "balanced"
READ_TIMEOUT_S = 300.0  # of a range that is read as a whole: a gigabyte over a slow link
