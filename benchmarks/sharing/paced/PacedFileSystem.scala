package hrm.benchmarks

import java.io.{EOFException, InputStream, InterruptedIOException}
import java.net.URI

import org.apache.hadoop.fs.{
  FSDataInputStream, Path, PositionedReadable, RawLocalFileSystem, Seekable
}

import org.apache.spark.TaskContext

/**
 * `paced:///path`: the local file of that path, read like a remote store with a bounded rate for
 * each connection. A task gets at most `fs.paced.bytes-per-s` from it and waits in between, without
 * using its core; a driver gets it at once.
 */
final class PacedFileSystem extends RawLocalFileSystem {
  override def getScheme: String = "paced"
  override def getUri: URI = URI.create("paced:///")

  override def open(path: Path, bufferSize: Int): FSDataInputStream = {
    val whole = super.open(path, bufferSize)
    val rate = getConf.getLong("fs.paced.bytes-per-s", 0L)
    if (rate <= 0 || TaskContext.get() == null) whole
    else new FSDataInputStream(new PacedInputStream(whole, rate))
  }
}

private final class PacedInputStream(whole: FSDataInputStream, bytesPerS: Long)
    extends InputStream with Seekable with PositionedReadable {

  /** Nanoseconds of waiting that less than a millisecond has left over. */
  private var owedNs = 0L

  private def pace(bytes: Int): Int = {
    if (bytes > 0) {
      owedNs += bytes * 1000000000L / bytesPerS
      val waitMs = owedNs / 1000000L
      owedNs -= waitMs * 1000000L
      try Thread.sleep(waitMs)
      catch { case _: InterruptedException => throw new InterruptedIOException("while it waits") }
    }
    bytes
  }

  override def read(): Int = {
    val byte = whole.read()
    if (byte >= 0) pace(1)
    byte
  }

  override def read(buffer: Array[Byte], offset: Int, length: Int): Int =
    pace(whole.read(buffer, offset, length))

  override def read(position: Long, buffer: Array[Byte], offset: Int, length: Int): Int =
    pace(whole.read(position, buffer, offset, length))

  override def readFully(position: Long, buffer: Array[Byte], offset: Int, length: Int): Unit = {
    var done = 0
    while (done < length) {
      val count = read(position + done, buffer, offset + done, length - done)
      if (count < 0) throw new EOFException(s"$length bytes wanted from $position, $done found")
      done += count
    }
  }

  override def readFully(position: Long, buffer: Array[Byte]): Unit =
    readFully(position, buffer, 0, buffer.length)

  override def seek(position: Long): Unit = whole.seek(position)
  override def getPos: Long = whole.getPos
  override def seekToNewSource(position: Long): Boolean = whole.seekToNewSource(position)
  override def available(): Int = whole.available()
  override def close(): Unit = whole.close()
}
