# ipykernel 7 warns of unencrypted TCP on the loopback device at every start, and calls its own shutdown an error
c.IPKernelApp.log_level = "CRITICAL"  # noqa: F821
