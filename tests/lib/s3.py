"""S3 for tests: a client of a few lines (it signs by itself), and the server of swift_s3.py as a context."""
import contextlib
import datetime
import hashlib
import hmac
import http.client
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

from harness import SLACK

ACCESS_KEY, SECRET_KEY, BUCKET = "test:tester", "testing", "media"


class Client:
    def __init__(self, port, access_key=ACCESS_KEY, secret_key=SECRET_KEY):
        self.port, self.access_key, self.secret_key = port, access_key, secret_key

    def request(self, method, path, query="", body=b""):
        """(status, headers, body)."""
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        path = urllib.parse.quote(path, safe="/-._~")
        query = "&".join(sorted(part if "=" in part else part + "=" for part in query.split("&") if part))
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": stamp}
        names = ";".join(headers)
        canonical = "\n".join([method, path, query, *(f"{k}:{v}" for k, v in headers.items()), "", names, digest])
        scope = f"{day}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        signature = self.sign(scope, text)
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={names}, "
                                    f"Signature={signature}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLACK)
        try:
            connection.request(method, path + ("?" + query if query else ""), body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def sign(self, scope, text):
        key = ("AWS4" + self.secret_key).encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), "sha256").digest()
        return hmac.new(key, text.encode(), "sha256").hexdigest()

    def presigned(self, method, path):
        """A URL that needs no headers; the body is not hashed."""
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp, scope = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d/us-east-1/s3/aws4_request")
        query = urllib.parse.urlencode({"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{self.access_key}/{scope}",
                                        "X-Amz-Date": stamp, "X-Amz-Expires": "600", "X-Amz-SignedHeaders": "host"}, safe="~")
        canonical = "\n".join([method, path, query, f"host:127.0.0.1:{self.port}", "", "host", "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        return f"http://127.0.0.1:{self.port}{path}?{query}&X-Amz-Signature={self.sign(scope, text)}"

    def get(self, key, bucket=BUCKET):
        """The object's bytes, or None."""
        status, _, body = self.request("GET", f"/{bucket}/{key}")
        assert status in (200, 404), (status, body)
        return body if status == 200 else None

    def head(self, key, bucket=BUCKET):
        status, headers, _ = self.request("HEAD", f"/{bucket}/{key}")
        return headers if status == 200 else None

    def put(self, key, body, bucket=BUCKET):
        status, _, answer = self.request("PUT", f"/{bucket}/{key}", body=body)
        assert status == 200, (status, answer)

    def env(self, port=None):
        """How mandor finds it; port: of a proxy before it."""
        return {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port or self.port}", "AWS_ACCESS_KEY_ID": self.access_key,
                "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def keys(self, bucket=BUCKET):
        return re.findall(r"<Key>(.*?)</Key>", self.request("GET", f"/{bucket}")[2].decode())

    def uploads(self, bucket=BUCKET):
        """Keys of unfinished uploads of parts."""
        status, _, body = self.request("GET", f"/{bucket}", "uploads")
        assert status == 200, (status, body)
        return [upload.findtext("{*}Key") for upload in ElementTree.fromstring(body).iter() if upload.tag.endswith("Upload")]


@contextlib.contextmanager
def server(tmp, max_parts=1000, skew=900):
    """A Client of a running server with an empty bucket."""
    top = pathlib.Path(tmp) / "swift"
    proc = subprocess.Popen(["/usr/bin/python3", str(pathlib.Path(__file__).with_name("swift_s3.py")), str(top),
                             "--max-parts", str(max_parts), "--skew", str(skew)], stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    try:
        port = proc.stdout.readline().strip()
        assert port.isdigit(), "the S3 server did not start"
        client = Client(int(port))
        status, _, body = client.request("PUT", f"/{BUCKET}")
        assert status == 200, (status, body)
        yield client
    finally:
        proc.terminate()
        proc.wait(30)
        proc.stdout.close()
        shutil.rmtree(top, ignore_errors=True)
