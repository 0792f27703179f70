"""The figures and tables of the four papers, as far as one machine can run them.

A file for each paper; `bench.py` is what they are made with. `gpu/tables.py` is the command.
"""
