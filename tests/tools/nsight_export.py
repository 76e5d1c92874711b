#!/usr/bin/env python3
"""Writes traces of torch.profiler or of Shardlens, of several ranks, as one export of Nsight Systems.

    nsight_export.py OUT.sqlite RANK0.json.gz [RANK1.json.gz …]

Tables and columns are those of the schema that `nsys export --type sqlite` of 2025 writes (user guide, "SQLite Schema Reference"). What
Nsight Systems does not record is left out: flows, instants, annotations of the device, and everything in arguments but the numbers of
kernels and copies. Sizes of collectives become payloads of ranges in NCCL's NVTX domain around their launches. The reader in
profiler/trace/nsight shares no code with this file.
"""
import argparse
import decimal
import gzip
import json
import re
import sqlite3
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
  shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
  localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
  sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER,
  dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
  bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  syncType INTEGER NOT NULL, eventId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
  text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
  doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
PUSH_POP, DOMAIN_CREATE = 59, 75
NCCL = 7  # the domain's number
COPIES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
SYNCS = ("", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
CALLS = {"_allgather_base": "ncclAllGather", "_reduce_scatter_base": "ncclReduceScatter", "allreduce": "ncclAllReduce", "broadcast": "ncclBroadcast"}
BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Byte": 1, "Long": 8, "Int": 4, "Double": 8}


def nanoseconds(text):
    return int((decimal.Decimal(text) * 1000).to_integral_value())


class Export:
    def __init__(self, database, traces):
        self.database, self.traces, self.strings, self.communicators, self.base = database, traces, {}, {}, None

    def text(self, value):
        return self.strings.setdefault(value, len(self.strings) + 1)

    def insert(self, table, **row):
        names = ",".join(f'"{name}"' for name in row)
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({','.join('?' * len(row))})", tuple(row.values()))

    def nvtx(self, start, end, thread, name, registered=False, domain=0, json_text=None, kind=PUSH_POP):
        self.insert("NVTX_EVENTS", start=start, end=end, eventType=kind, text=None if registered else name, globalTid=thread,
                    textId=self.text(name) if registered else None, domainId=domain, jsonText=json_text)

    def rank(self, path, number):
        trace = json.loads(gzip.open(path).read(), parse_float=str, parse_int=str)
        file_base = int(trace.get("baseTimeNanoseconds", "0"))
        events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and "cat" in event]
        first = min(nanoseconds(event["ts"]) for event in events) + file_base
        if self.base is None:
            self.base = first - first % 1_000_000_000
            self.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=self.base)
        process = 1000 + number  # as every rank of a job has another
        launches = {}
        for event in events:
            event["start"] = nanoseconds(event["ts"]) + file_base - self.base
            event["end"] = event["start"] + nanoseconds(event["dur"])
            if event["cat"] in ("cuda_runtime", "cuda_driver"):
                launches[event["args"].get("correlation")] = event
        threads = {}

        def thread(event):
            return process << 24 | threads.setdefault((event["pid"], event["tid"]), 5000 + len(threads))

        self.nvtx(0, None, process << 24 | 5000, "NCCL", domain=NCCL, kind=DOMAIN_CREATE)
        self.communicator(process << 24 | 5000, 1, 0xfff, number, int(trace.get("distributedInfo", {}).get("world_size", len(self.traces))))
        groups = {}
        for event in sorted(events, key=lambda each: each["start"]):
            self.event(event, thread, process, launches, groups, number)

    def event(self, event, thread, process, launches, groups, number):
        arguments = event.get("args", {})
        times = {"start": event["start"], "end": event["end"]}
        name, category = event["name"], event["cat"]
        if category in ("cpu_op", "user_annotation"):
            sizes = arguments.get("Input Dims")
            if name == "record_param_comms":
                return  # a record of the profiler, no range
            if category == "cpu_op" and sizes:
                name += ", op_id = 12, sizes = " + json.dumps(sizes).replace('"', "")
            self.nvtx(event["start"], event["end"], thread(event), name, registered=len(name) % 2 == 0)
        elif category in ("cuda_runtime", "cuda_driver"):
            self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", **times, eventClass=0 if category == "cuda_runtime" else 1, globalTid=thread(event),
                        correlationId=int(arguments.get("correlation", 0)), nameId=self.text(name + "_v7000"), returnValue=0)
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            place = {"deviceId": int(arguments["device"]), "contextId": int(arguments.get("context", 1)), "streamId": int(arguments["stream"]),
                     "correlationId": int(arguments["correlation"]), "globalPid": process << 24}
            if category == "kernel":
                self.kernel(event, arguments, times | place, thread, launches, groups, number)
            elif category == "gpu_memcpy":
                kind, source, destination = re.fullmatch(r"Memcpy (\w+) \((.*) -> (.*)\)", name).groups()
                self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **times, **place, bytes=int(arguments["bytes"]), copyKind=COPIES.index(kind),
                            srcKind=MEMORY.index(source), dstKind=MEMORY.index(destination))
            else:
                self.insert("CUPTI_ACTIVITY_KIND_MEMSET", **times, **place, bytes=int(arguments["bytes"]), value=0,
                            memKind=MEMORY.index(re.fullmatch(r"Memset \((.*)\)", name)[1]))
        elif category == "cuda_sync":
            self.insert("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **times, deviceId=int(arguments.get("device", 0)), contextId=1,
                        streamId=int(arguments.get("stream", -1)), correlationId=int(arguments.get("correlation", 0)), globalPid=process << 24,
                        syncType=SYNCS.index(name) if name in SYNCS else 0, eventId=int(arguments.get("wait_on_cuda_event_id", 0)))

    def communicator(self, thread, start, number, rank, ranks):
        payload = {"Communicator ID": number, "No. of ranks": ranks, "Rank": rank, "CUDA device": 0}
        self.nvtx(start, start + 1, thread, "ncclCommInitRank", domain=NCCL, json_text=json.dumps(payload))

    def kernel(self, event, arguments, columns, thread, launches, groups, number):
        grid, block = arguments.get("grid", [1, 1, 1]), arguments.get("block", [1, 1, 1])
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", **columns, demangledName=self.text(event["name"]), shortName=self.text(event["name"].split("<")[0]),
                    registersPerThread=int(arguments.get("registers per thread", 0)), gridX=int(grid[0]), gridY=int(grid[1]), gridZ=int(grid[2]),
                    blockX=int(block[0]), blockY=int(block[1]), blockZ=int(block[2]), staticSharedMemory=0, dynamicSharedMemory=0,
                    localMemoryPerThread=0, localMemoryTotal=0, gridId=0)
        launch, collective = launches.get(arguments["correlation"]), arguments.get("Collective name")
        if launch is None or collective not in CALLS:
            return
        # A communicator has the same number on all of its ranks, and another than those of others.
        members = json.loads(arguments["Process Group Ranks"])
        group = arguments["Process Group Name"], tuple(members)
        if group not in groups:
            groups[group] = self.communicators.setdefault(group, 0x1000 + len(self.communicators))
            self.communicator(thread(launch), 2 + 2 * len(groups), groups[group], members.index(number), len(members))
        received = collective == "_reduce_scatter_base"
        size = int(arguments["Out msg nelems" if received else "In msg nelems"]) * BYTES[arguments["dtype"]]
        self.nvtx(launch["start"], launch["end"], thread(launch), CALLS[collective], registered=True, domain=NCCL,
                  json_text=json.dumps({"Communicator ID": groups[group], "Message size [bytes]": size}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("traces", nargs="+", type=Path)
    options = parser.parse_args()
    options.out.unlink(missing_ok=True)
    with sqlite3.connect(options.out) as database:
        database.executescript(SCHEMA)
        export = Export(database, options.traces)
        export.insert("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.4")
        for number, path in enumerate(options.traces):
            export.rank(path, number)
        database.executemany("INSERT INTO StringIds (value, id) VALUES (?, ?)", export.strings.items())


if __name__ == "__main__":
    main()
