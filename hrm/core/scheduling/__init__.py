"""Schedulers and the state that they share: views, validation of claims, copies elsewhere."""
