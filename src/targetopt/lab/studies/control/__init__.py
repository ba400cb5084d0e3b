"""The supervised control: with labels in hand, does the surrogate help, or do m steps on each batch do as well?"""
