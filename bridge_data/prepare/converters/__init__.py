"""Converting data of other forms into data sets: one module for each family of formats."""
