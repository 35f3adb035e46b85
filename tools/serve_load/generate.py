# SPDX-License-Identifier: Apache-2.0
"""Sends requests to a server at random times (open loop), or a fixed number at once (closed loop).

What PyPI has does not fit: guidellm takes PyTorch, aiperf and llama-benchy take transformers; the
users of locust wait for answers, but requests must arrive by themselves. So this is a thread of
Python's standard library for each request; the processor time that it takes stands in each result.
"""
import queue
import random
import threading
import time

import stream


def arrival_times(seed, count, rate):
    """Seconds from the first arrival, which is at 0, of a Poisson process with `rate` a second. The
    same seed gives the same times but for their scale."""
    draw = random.Random(seed)
    times, at = [], 0.0
    for _ in range(count):
        times.append(at / rate)
        at += draw.expovariate(1)
    return times


class Load:
    """Requests of one run. Samples keep the order of requests; times count from the beginning."""

    def __init__(self, port, path, bodies):
        self.port, self.path, self.bodies = port, path, bodies
        self.samples = [None] * len(bodies)
        self.failed = queue.SimpleQueue()

    def send(self, i, due):
        try:
            sample = stream.stream(self.port, self.path, self.bodies[i])
            sample['due'] = sample['sent'] if due is None else due
            self.samples[i] = sample
        except Exception as error:  # pylint: disable=broad-except  # raised again by finish
            self.failed.put(error)

    def finish(self, threads, begin, cpu):
        for thread in threads:
            thread.join()
        if not self.failed.empty():
            raise self.failed.get()
        for sample in self.samples:
            for name in ('due', 'sent', 'ended'):
                sample[name] = round(sample[name] - begin, 6)
            sample['times'] = [round(at - begin, 6) for at in sample['times']]
        return {'samples': self.samples, 'generator_cpu_s': time.process_time() - cpu,
                'seconds': max(sample['ended'] for sample in self.samples)}

    def at_times(self, times):
        """Request i at times[i], whatever the others do."""
        cpu, begin, threads = time.process_time(), time.monotonic(), []
        for i, at in enumerate(times):
            if not self.failed.empty():
                break
            time.sleep(max(0.0, begin + at - time.monotonic()))
            threads.append(threading.Thread(target=self.send, args=(i, begin + at), daemon=True))
            threads[-1].start()
        return self.finish(threads, begin, cpu)

    def at_once(self, flight):
        """`flight` requests at a time: the next one when one has ended."""
        left = iter(range(len(self.bodies)))
        lock = threading.Lock()

        def work():
            while self.failed.empty():
                with lock:
                    i = next(left, None)
                if i is None:
                    return
                self.send(i, None)

        cpu, begin = time.process_time(), time.monotonic()
        threads = [threading.Thread(target=work, daemon=True) for _ in range(flight)]
        for thread in threads:
            thread.start()
        return self.finish(threads, begin, cpu)
