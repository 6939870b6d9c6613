"""Agon trains two reasoning policies against each other over one frozen language model.

Read `rounds` and then `rewards`: they are the method. Nothing is imported here, so that
`import agon` costs nothing.
"""

__version__ = "0.1.0"
