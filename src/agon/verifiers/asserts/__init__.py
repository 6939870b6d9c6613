"""Judging a program by assert statements without letting it near them.

The statements run in one process, the program in another, each in a sandbox of its own. Names of
the program stand in the statements' process as proxies (`testing`): a call sends its arguments as
plain values (`wire`) to the program's process (`serving`), and the result comes back as a plain
value. So the program sees the arguments of its calls and nothing else: not the statements, not
the expected values, not the comparison. What it returns is compared as what it holds, whatever
its own `__eq__` says.

The modules here are also sent into the sandbox, where nothing else of the package is: they import
the standard library and each other alone.
"""
