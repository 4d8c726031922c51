"""The tiny model family: text generator, tokenizer, training, export, evaluation.

No model can be downloaded where OpenSLED is built and tested, so the repository carries a family trained for
it. `python -m lab.training all` makes it again from fixed seeds; `models/README.md` tells what came out.
"""
