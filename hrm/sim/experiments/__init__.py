"""The paper's experiments on the production core, in virtual time."""
