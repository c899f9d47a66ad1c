"""What holds for all tests."""

import signal

# A job in the background of a shell inherits that Ctrl-C is ignored, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
