"""Long contexts: some tokens of what a layer saves are kept, the others are computed again.

Memo's split by the token (section 4.1 of the paper), of layers that nobody has to change:

     forward    the layer runs as ever; what autograd saves of it is cut by the token:
                rows [:c] are kept, the layer's input and attention's output are kept whole
     backward   the layer runs again over the rows [c:] of its input. Attention is not computed
                again: it is answered with what it gave. What autograd saves there is put behind
                the rows that were kept, and the backward pass of the whole length uses it

Nothing is taken on trust: which tensors can be cut, and along which dimension, is found by running
the layer again at another length and comparing, to the bit, with what was saved. What is not equal
is kept.

| file | |
|:--|:--|
| `call.py` | the forward pass of a layer: what was saved, and cutting it |
| `together.py` | its backward pass: putting it together again |
| `tiles.py`, `probe.py` | a perceptron over some tokens after others; which module can be one |
| `learn.py` | what of a pass can be cut: it runs again, and is compared |
| `notes.py` | operators of which a replay is given what they gave |
| `replay.py` | the layer once more; attention, products, sums, random numbers are answered |
| `own.py`, `picture.py`, `generators.py` | what a layer has of its own: a replay puts it back |
| `weights.py` | the parameters that a pass ran with, which a replay runs with |
| `placed.py` | what is put into a module, and is in no copy of it |
| `hooks.py` | a program's hooks within a layer run once |
| `communicate.py` | what ranks say to each other: once, in the forward pass |
| `layout.py` | where the tokens of a tensor are |
| `layer.py` | a layer of the model: its forward, and what was learnt of it |
| `find.py` | the layers of a model, and why one cannot be split |
| `share.py` | how many tokens are kept |
| `api.py`, `found.py` | what a program calls; the model of one that calls nothing |

torch is imported by these files, and these files by nothing but `girih.long_context`.
"""
