#!/usr/bin/python3
"""An S3 server for tests: OpenStack Swift with its S3 API, whole, in one process and one directory.

    swift_s3.py DIR [--max-parts N] [--skew SECONDS]     prints "PORT\n" when it serves; ends with its parent or on SIGTERM

It checks signatures (version 4), clocks and the hashes of bodies, and has uploads in parts with list and abort.  User test:tester, key
testing; the bucket "media" is there.  doc/decisions says why this one.
"""
import argparse
import ctypes
import os
import pathlib
import signal
import sys

import eventlet

eventlet.monkey_patch()

import eventlet.wsgi  # noqa: E402
from swift.common import utils  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402

HOST = "127.0.0.1"
ACCESS_KEY, SECRET_KEY, BUCKET = "test:tester", "testing", "media"


class Silent:
    def write(self, *_):
        pass

    def flush(self):
        pass

    def __getattr__(self, _):
        return lambda *args, **kw: None


def make_ring(path, port):
    builder = RingBuilder(4, 1, 1)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "ip": HOST, "port": port, "device": "d", "weight": 1.0,
                     "replication_ip": HOST, "replication_port": port})
    builder.rebalance()
    builder.get_ring().save(str(path))


def server_config(top, kind, port):
    path = top / f"{kind}.conf"
    path.write_text(f"""[DEFAULT]
devices = {top}/devices
mount_check = false
swift_dir = {top}
bind_ip = {HOST}
bind_port = {port}
fallocate_reserve = 0
log_level = ERROR
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
""")
    return path


def proxy_config(top, max_parts, skew):
    path = top / "proxy.conf"
    path.write_text(f"""[DEFAULT]
swift_dir = {top}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = {HOST}:1
error_suppression_limit = 0
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
max_upload_part_num = {max_parts}
allow_multipart_uploads = true
allowable_clock_skew = {skew}
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
user_test_second = testing2 .admin
[filter:slo]
use = egg:swift#slo
max_manifest_segments = {max_parts}
[filter:dlo]
use = egg:swift#dlo
""")
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--max-parts", type=int, default=1000)
    parser.add_argument("--skew", type=int, default=900)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    top = pathlib.Path(options.dir)
    (top / "devices" / "d").mkdir(parents=True)
    (top / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = test\nswift_hash_path_prefix = test\n"
                                    "[storage-policy:0]\nname = only\ndefault = yes\n")
    utils.SWIFT_CONF_FILE = str(top / "swift.conf")
    from swift.common import constraints, storage_policy, wsgi
    constraints.SWIFT_CONF_FILE = storage_policy.SWIFT_CONF_FILE = utils.SWIFT_CONF_FILE
    utils.validate_hash_conf()
    storage_policy.reload_storage_policies()
    listen = {kind: eventlet.listen((HOST, 0)) for kind in ("account", "container", "object", "proxy")}
    for kind in ("account", "container", "object"):
        port = listen[kind].getsockname()[1]
        make_ring(top / f"{kind}.ring.gz", port)
        app = wsgi.loadapp(str(server_config(top, kind, port)))
        eventlet.spawn(eventlet.wsgi.server, listen[kind], app, Silent(), log_output=False)
    app = wsgi.loadapp(str(proxy_config(top, options.max_parts, options.skew)))
    print(listen["proxy"].getsockname()[1], flush=True)
    eventlet.wsgi.server(listen["proxy"], app, Silent(), log_output=False, minimum_chunk_size=1)


if __name__ == "__main__":
    main()
