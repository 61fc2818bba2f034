"""What Airflow connects to SQLite with: a process waits for its turn, on a busy machine too.

All but the API server. That writes some things from its event loop, and while it waits there it
cannot finish what holds the lock: the sooner it gives up, the sooner all others go on.
"""

import sys

USUAL_S, PATIENT_S = 5.0, 120.0  # after the usual time a scheduler ends

CONNECT_ARGS = {"timeout": USUAL_S if "api-server" in sys.argv else PATIENT_S}
