"""Simulators: environments, their copies, who drives them, and the states that are gathered."""
