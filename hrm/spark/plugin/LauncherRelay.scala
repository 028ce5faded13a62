package org.apache.spark.scheduler.cluster.hrm

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.spark.SparkConf
import org.apache.spark.launcher.SparkAppHandle

/**
 * For `hrm submit` in the place of a driver: the driver runs on a node, and the program that used
 * SparkLauncher follows it all the same. Its protocol is Java's serialisation, so a JVM speaks it.
 *
 * Standard input has a line for each news: `submitted`, `running ID`, `ended STATE`. Its end is the
 * end of this program. Standard output has the line `stop` when the launcher wants that.
 */
private[hrm] object LauncherRelay {

  def main(arguments: Array[String]): Unit = {
    val link = new LauncherLink(new SparkConf(false), () => {
      println("stop")
      System.out.flush()
    })
    val input = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    Iterator.continually(input.readLine()).takeWhile(_ != null).foreach { line =>
      line.split(" ").toList match {
        case List("submitted") => link.submitted()
        case List("running", applicationId) => link.running(applicationId)
        case List("ended", state) => link.ended(SparkAppHandle.State.valueOf(state))
        case _ => System.err.println(s"HRM: the launcher's relay does not know '$line'")
      }
    }
    System.exit(0)
  }
}
