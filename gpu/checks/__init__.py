"""The checks of `gpu/parity.py`, a file for each subject.

```text
 a subject ──@check, @alone──► registry.py: CHECKS, ALONE ──► parity.py
```

`parity.py` names the subjects in the order in which their checks run.
"""
