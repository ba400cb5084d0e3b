"""The imitation figures of the paper: their claims, pictures and reference levels."""
