"""From measurements to coefficients: rows, the forms fitted to them, errors on held-out rows, the preset."""
