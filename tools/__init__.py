"""Scripts for working on the project: setting up the environment."""
