"""The experts that come with the package, one model card each, and how to train such.

``targetopt expert list`` shows them; :func:`targetopt.imitation.expert.load_expert` loads them.
"""
