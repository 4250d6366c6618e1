"""A loader for training code that saves and restores each data-parallel rank by itself, as that of Energon is used."""
