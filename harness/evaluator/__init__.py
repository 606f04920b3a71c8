"""One way from the arguments of eval.py to its report. A case takes it once, from top to bottom:

    eval.py
      command          entered once; calls what follows, in this order
        arguments      the command line -> options that make sense
        selection      options -> cases; `cases` reads, checks and draws them
        devices        options -> the device; starts the emulator
        jobs           a case -> its Job, all that its process is told
        running        jobs -> outcomes, in the order of the cases (mode tune: `trials`)
          pool         a process for each job (tune --scheduler: `dask_cluster`)
            case/worker        in that process: limits of time and of programs, then the mode
              case/modes/MODE  loads the submission, makes inputs, runs, checks, times
            case/worker        whatever was raised -> the Outcome
          pool         the Outcome, with what the case printed (`output`), or how its process ended
        running        the Outcome -> `report` (for a person, JSON), `protocol` (for a runner)
      command          outcomes -> exit status, by `protocol`

`progress` shows meanwhile what runs. What a study needs of a case it takes from the middle: a Job
for `pool`, or `case/loading` and `case/checks` in its own process. `compare` (several
submissions side by side) and `ladder` (against published times) do, as commands of eval.py of their
own. `official` runs an organiser's harness in place of this one; `dependencies` says before all
that what is not installed.
"""
