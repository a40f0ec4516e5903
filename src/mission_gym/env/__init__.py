"""The user's environment: from an id and kwargs to a factory, an EnvSpec and one running slot.

`factory` builds environments by name, with `user_code` (imports, third-party packages), `wrapper_names` and
`wrappers`, `agents` (several agents), `coroutines` and `event_loop`, `vector_envs` (vectors of SB3 and
EnvPool). `probe` reads an EnvSpec: `spaces` has the layout of actions, `leaves` that of observations (and
converts them), `masks` that of masks. `slot` and `agents_slot` run one environment: `contract` checks its
values, `resume` stores its state, `stages` selects its curriculum stage. `pace` measures it.
"""
