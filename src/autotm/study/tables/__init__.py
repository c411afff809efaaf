"""From records and plans to tidy tables: what figures are drawn from, and what commands print."""

from autotm.study.tables.addresses import stay_offsets
from autotm.study.tables.columns import columns, shorten
from autotm.study.tables.costs import costs, table_of_costs
from autotm.study.tables.csv import read_table, write_table
from autotm.study.tables.describe import describe
from autotm.study.tables.disturbed import BEFORE, BEFORE_SEPARATOR, COLUMN, at_limits, marked
from autotm.study.tables.meanings import MEANINGS
from autotm.study.tables.modelled import is_modelled, table_of_plans
from autotm.study.tables.prices import with_prices
from autotm.study.tables.record_table import table_of_runs, write_runs
from autotm.study.tables.records import PAGES, require_one, table_of_records, versions_text
from autotm.study.tables.verification import verify_records

__all__ = [
    "BEFORE",
    "BEFORE_SEPARATOR",
    "COLUMN",
    "MEANINGS",
    "PAGES",
    "at_limits",
    "columns",
    "costs",
    "describe",
    "is_modelled",
    "marked",
    "read_table",
    "require_one",
    "shorten",
    "stay_offsets",
    "table_of_costs",
    "table_of_plans",
    "table_of_records",
    "table_of_runs",
    "verify_records",
    "versions_text",
    "with_prices",
    "write_runs",
    "write_table",
]
