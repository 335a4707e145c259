"""Simulate what flowq does: the same programs and policies, over a SimPy clock."""
