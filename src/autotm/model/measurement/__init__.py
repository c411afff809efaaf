"""What was measured: profiles, links, records."""

from autotm.model.measurement.beside import BesideKernels
from autotm.model.measurement.framework_record import FrameworkRecord
from autotm.model.measurement.link import AsynchronousLinks, Contention, CopyCurve, Link, Links, MachineRates
from autotm.model.measurement.profile import COMPARED_WITH, Profile, Timing, TimingKey
from autotm.model.measurement.profile_file import KEY_COLUMNS, read_profile, write_profile
from autotm.model.measurement.record import KERNEL_BY_KERNEL, PLAIN_STEP, Record
from autotm.model.measurement.sensitivity import Draw, Sensitivity
from autotm.model.measurement.slow_rates import slow_rates
from autotm.model.measurement.step_trace import CopyTimes, StepTrace
from autotm.model.measurement.timeline import Lane, TimedOperation, Timeline
from autotm.model.measurement.timing_study import ConfigurationTime, TimingStudy, Way, WayCost
from autotm.model.measurement.tuning import TunedKernel, TunedSchedule, TuningReport

__all__ = [
    "COMPARED_WITH",
    "KERNEL_BY_KERNEL",
    "KEY_COLUMNS",
    "PLAIN_STEP",
    "AsynchronousLinks",
    "BesideKernels",
    "ConfigurationTime",
    "Contention",
    "CopyCurve",
    "CopyTimes",
    "Draw",
    "FrameworkRecord",
    "Lane",
    "Link",
    "Links",
    "MachineRates",
    "Profile",
    "Record",
    "Sensitivity",
    "StepTrace",
    "TimedOperation",
    "Timeline",
    "Timing",
    "TimingKey",
    "TimingStudy",
    "TunedKernel",
    "TunedSchedule",
    "TuningReport",
    "Way",
    "WayCost",
    "read_profile",
    "slow_rates",
    "write_profile",
]
