"""A contract for import-linter (`.importlinter`): folders are imported through their `__init__`."""

from __future__ import annotations

import grimp
from importlinter import Contract, ContractCheck, output


class Interfaces(Contract):
    """A module is imported from within its own folder only; all others import the folder."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 (import-linter's signature)
        """Find every import of a module, which is not a package, from outside its folder."""
        past: list[str] = []
        for module in sorted(graph.modules):
            folder = module.rpartition(".")[0]
            if graph.is_module_squashed(module) or not folder or graph.find_children(module):
                continue
            for importer in sorted(graph.find_modules_that_directly_import(module)):
                if importer == folder or importer.startswith(f"{folder}."):
                    continue
                # `from folder import name` also counts as an import of the module, where both have one name.
                past += [
                    f"{importer}:{each['line_number']} imports {module}, past {folder}"
                    for each in graph.get_import_details(importer=importer, imported=module)
                    if module in each["line_contents"]
                ]
        return ContractCheck(kept=not past, metadata={"past": past})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print a line for each such import."""
        for line in check.metadata["past"]:
            output.print_error(f"- {line}", bold=False)
