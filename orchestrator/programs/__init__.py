"""Trains trials by programs: commands of the user, which report what they measure. Nothing is
imported here, since a user's script that imports `report` should not wait."""
