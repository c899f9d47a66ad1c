"""`ajet-swarm demo`: the server and a client as two processes, as a user would run them, and a report at the end.

Imports the client side only; the server is started through the command line.
"""
