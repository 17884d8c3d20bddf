"""Seeded clusters of the real core and the real drivers under a fake clock (ADR-0024)."""
