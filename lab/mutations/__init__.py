"""Mutations of the kernel's compiled PTX: what catches them."""
