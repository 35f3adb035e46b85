# SPDX-License-Identifier: Apache-2.0
"""Peers for tools/gpu_peers.py that need no GPU: each behaves as one of other people's may. Without
PRETEND_PEERS in the environment only those of a dry run are asked: one that measures something, and
one that fails to import."""
import os
import time

from gpu_peers import ImportFailed, NothingToMeasure

broken = False


def fine(case):
    return {'total_us': 20.0 * case.batch, 'graph_us': 10.0 * case.batch, 'replays': 10}


def absent(case):
    try:
        import no_such_attention
    except ImportError as error:
        raise ImportFailed(error)


def wrong(case):
    raise ValueError('its output differs')


def dies(case):
    print('about to die')
    os.abort()


def hangs(case):
    time.sleep(60)


def breaks_the_device(case):
    global broken
    broken = True
    raise RuntimeError('an illegal memory access was encountered')


PEERS = {'absent': absent, 'fine': fine, 'wrong': wrong, 'dies': dies, 'hangs': hangs,
         'breaks': breaks_the_device, 'also-fine': fine, 'flex': fine}
QUICK = os.environ.get('PRETEND_PEERS', 'absent,fine').split(',')


def header():
    if os.environ.get('PRETEND_PEERS') == 'fine,nothing':
        raise NothingToMeasure('there is no GPU')
    return {'version': '0', 'device': 'cuda:0', 'device_name': 'a pretended one'}


def usable():
    return not broken


def measure(name, case):
    if broken:
        raise RuntimeError('the device answers no more')
    return PEERS[name](case)
