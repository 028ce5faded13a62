"""Trainers of the learned policies: networks in PyTorch, environments, features, evaluation.

Nothing here is imported for scheduling: policies infer with numpy from exported weights
(``hrm.policies.model_files``; the policies are in ``hrm.pipelines.policies``). PyTorch comes with
``pip install 'hrm-spark[learn]'``.
"""
