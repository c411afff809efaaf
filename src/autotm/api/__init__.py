"""autotm from Python: `autotm.plan(network, limit="4:1").run()`, `autotm.offload(module, ...)`."""
