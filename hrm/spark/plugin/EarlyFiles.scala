package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.net.URI
import java.util.{LinkedHashMap => JMap}
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.util.{ShutdownHookManager, Utils}

/**
 * Lets Spark serve the same content of files as HRM.
 *
 * The AppMaster copies what executors need before their JVM starts, when the application registers, and nodes put
 * these copies in place. Spark would serve the originals to the same place, as they are when an executor starts, and
 * the executor ends where the two differ. So Spark serves the copies, too: a file that is edited meanwhile stays as
 * it was for this application, as on YARN.
 */
private[hrm] class EarlyFiles(sc: SparkContext) extends Logging {
  import EarlyFiles._

  // What spark-env.sh has laid out for `--files a#b`: Spark reads it again for each context.
  sys.env.get(RenamedDirectory).foreach(path => ShutdownHookManager.registerShutdownDeleteDir(new File(path)))

  private val files = ExecutorLaunch.shipped(sc.conf)
  private val mode = sc.conf.get("spark.hrm.localize", "named")
  /** Where the AppMaster puts copies, by kind; it is removed when the driver ends. None: there is nothing to copy. */
  private val directory =
    if (mode == "none" || files.values.stream.allMatch(_.isEmpty)) None
    else Some(Utils.createTempDir(Utils.getLocalDir(sc.conf), "early"))
  private val served = new AtomicBoolean(false)

  def describe(hello: JMap[String, Any]): Unit = {
    hello.put("files", files)
    hello.put("localize", mode)
    directory.foreach(place => hello.put("early_dir", place.getPath))
  }

  /** To be called when the copies are there, before any executor is. */
  def serve(): Unit = if (served.compareAndSet(false, true)) directory.foreach { place =>
    try {
      Seq("file" -> sc.addedFiles, "jar" -> sc.addedJars, "archive" -> sc.addedArchives).foreach {
        case (kind, added) => serve(kind, new File(place, kind), added.values.toSeq)
      }
    } catch {
      case NonFatal(e) => logWarning(s"files that executors need early are served as they are, not as they were: $e")
    }
  }

  /** `added`: the times at which files were added, by their addresses. */
  private def serve(kind: String, copies: File, added: Seq[scala.collection.mutable.Map[String, Long]]): Unit = {
    if (copies.isDirectory) {
      val base = sc.env.rpcEnv.fileServer.addDirectory(s"/early-$kind", copies)
      for (times <- added; (address, time) <- times.toSeq; copy <- copied(address, copies, base)) {
        times.remove(address)
        times.put(copy, time)
      }
      // What an executor gets before its first task.
      sc.conf.set(s"spark.app.initial.$kind.urls", added.flatMap(_.keys).mkString(","))
    }
  }

  /** The address of the copy of what Spark serves at `address`; None: there is none. */
  private def copied(address: String, copies: File, base: String): Option[String] = {
    val uri = new URI(address)
    val name = Utils.decodeFileNameInURI(uri)
    if (uri.getScheme == "spark" && new File(copies, name).isFile) {
      val fragment = Option(uri.getRawFragment).map("#" + _).getOrElse("")
      Some(s"$base/${Utils.encodeFileNameToURIRawPath(name)}$fragment")
    } else None
  }
}

private[hrm] object EarlyFiles {
  private val RenamedDirectory = "HRM_RENAMED_DIR"
}
