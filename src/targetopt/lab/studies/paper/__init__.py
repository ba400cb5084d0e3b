"""The paper's figures: what each is made of, what it claims, and whether that holds here.

A figure is one TOML file in the format of ``targetopt run``, without epochs, batch sizes and seeds:
those are its :data:`scale <targetopt.lab.studies.paper.figures.SCALES>`. ``docs/reproduction.md`` says what was chosen
where the paper leaves a choice.

>>> from targetopt.lab.studies.paper import figures
>>> "fig2-rcv1" in figures.names()
True
"""
