# ipykernel 7 warns of unencrypted TCP on the loopback device at every start
c.IPKernelApp.log_level = "ERROR"  # noqa: F821
