"""Training programs of other kinds than language models: a file for each, run by `kinds.py`.

Each has a function `build` that makes its models and gives back the function of one step. Sizes,
shapes and data come from the seed, and few steps are like the one before.
"""
