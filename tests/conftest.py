"""Ctrl-C is on trial here: a shell starts background jobs with SIGINT ignored, and whatever they start would never see it."""

import signal
import threading

if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
