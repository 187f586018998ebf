"""A thread per core, each with a worker of its own, until no job is left or one of them fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Job = TypeVar("Job")


def share(jobs: Iterable[Job], new_worker: Callable[[], Callable[[Job], None]]) -> None:
    """Do all `jobs`, taken in their order; raises the first error, once every thread has stopped."""
    _Crew(jobs, new_worker).run()


class _Crew(Generic[Job]):
    def __init__(self, jobs: Iterable[Job], new_worker: Callable[[], Callable[[Job], None]]) -> None:
        self.jobs, self.new_worker = iter(jobs), new_worker
        self.lock = threading.Lock()
        self.stop = False

    def run(self) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as pool:
            try:
                futures = [pool.submit(self._work) for _ in range(threads)]
                for future in futures:
                    future.result()
            except BaseException:
                self.stop = True
                raise

    def _next(self) -> Job | None:
        with self.lock:
            return None if self.stop else next(self.jobs, None)

    def _work(self) -> None:
        work = self.new_worker()
        try:
            while (job := self._next()) is not None:
                work(job)
        except BaseException:
            self.stop = True
            raise
