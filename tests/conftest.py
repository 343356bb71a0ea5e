"""Ctrl-C is on trial here: a shell starts background jobs with SIGINT ignored, and whatever they start would never see it."""

import os
import signal
import threading

if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest keeps its cache in tox's folder where there is one: the sessions that tests start would share one list of what failed last.
os.environ.pop("TOX_ENV_DIR", None)
