package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.util.{ArrayList => JList, LinkedHashMap => JMap}

import scala.util.Try

import org.apache.spark.{SecurityManager, SparkConf, SparkContext, SparkException}
import org.apache.spark.internal.config
import org.apache.spark.launcher.JavaModuleOptions
import org.apache.spark.network.util.JavaUtils
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.util.Utils

/** How executors are started and what they need, as plain maps for JSON. */
private[hrm] object ExecutorLaunch {
  private val GpuMemory = "spark.hrm.executor.gpu.memory"
  private val LibraryPath = "LD_LIBRARY_PATH"
  private val UserFirst = "spark.executor.userClassPathFirst"
  private val Decommission = "spark.decommission.enabled"
  private val Shipped = Seq("file" -> "spark.files", "jar" -> "spark.jars", "archive" -> "spark.archives")
  /** Also in spark_settings.py, for drivers in cluster deploy mode. */
  private val ListsOfYarn = Seq("archives" -> "spark.archives", "files" -> "spark.files", "jars" -> "spark.jars",
    "pyFiles" -> "spark.submit.pyFiles").map { case (kind, ours) => s"spark.yarn.dist.$kind" -> ours }
  private val SentBytesMs = 4096L
  private val DecommissionSignal = "spark.executor.decommission.signal"
  private val LimitProcessors = "spark.executor.limitActiveProcessorCount.enabled"
  /** Signals that Java keeps to itself, and those that no process can handle. */
  private val UnhandledSignals = Set("FPE", "ILL", "SEGV", "QUIT", "KILL", "STOP")

  def describe(sc: SparkContext, driverUrl: String): JMap[String, Any] = {
    val launch = new JMap[String, Any]()
    launch.put("driver_url", driverUrl)
    launch.put("spark_version", sc.version)
    launch.put("environment", environment(sc))
    launch.put("decommissions", decommissions(sc.conf))
    launch.put("decommission_signal", sc.conf.get(DecommissionSignal, ""))
    launch.put("java_options", javaOptions(sc.conf))
    launch.put("extra_class_path", strings(
      sc.conf.get(config.EXECUTOR_CLASS_PATH).toSeq.flatMap(_.split(File.pathSeparator))))
    launch
  }

  /** The files that the application ships, as Spark's settings name them, by kind. */
  def shipped(conf: SparkConf): JMap[String, String] = {
    val lists = new JMap[String, String]()
    Shipped.foreach { case (kind, setting) => lists.put(kind, conf.get(setting, "")) }
    lists
  }

  /** How long the AppMaster may take to send them, at most: nothing where all are elsewhere. */
  def sendingMs(conf: SparkConf): Long = {
    val names = Shipped.flatMap { case (_, setting) => conf.get(setting, "").split(",").toSeq }
    val paths = names.map(_.trim.takeWhile(_ != '#').stripPrefix("file:")).filter(_.nonEmpty)
    paths.map(path => new File(path).length()).sum / SentBytesMs
  }

  /** Names of what is set of executors, drivers and HRM, for a warning about those without effect. */
  def settings(conf: SparkConf): JList[String] = strings(conf.getAll.toSeq.map(_._1).sorted.filter(name =>
    Seq("spark.executor.", "spark.driver.", "spark.hrm.").exists(prefix => name.startsWith(prefix))))

  def resources(profile: ResourceProfile, count: Int, conf: SparkConf): JMap[String, Any] = {
    def amount(name: String): Option[Long] = profile.executorResources.get(name).map(_.amount)
    val heapMib = amount(ResourceProfile.MEMORY).getOrElse(conf.get(config.EXECUTOR_MEMORY))
    val overheadMib = amount(ResourceProfile.OVERHEAD_MEM)
      .orElse(conf.get(config.EXECUTOR_MEMORY_OVERHEAD))
      .getOrElse(defaultOverheadMib(heapMib, conf))
    val offHeapMib = amount(ResourceProfile.OFFHEAP_MEM).getOrElse(
      if (!conf.get(config.MEMORY_OFFHEAP_ENABLED)) 0L
      else conf.get(config.MEMORY_OFFHEAP_SIZE) / 1024 / 1024)
    val pysparkMib = amount(ResourceProfile.PYSPARK_MEM).getOrElse(
      conf.getOption("spark.executor.pyspark.memory").map(JavaUtils.byteStringAsMb).getOrElse(0L))
    val target = new JMap[String, Any]()
    target.put("profile", profile.id)
    target.put("count", count)
    val vcores = amount(ResourceProfile.CORES).getOrElse(conf.get(config.EXECUTOR_CORES).toLong)
    target.put("vcores", vcores)
    target.put("heap_mib", heapMib)
    target.put("memory_mib", heapMib + overheadMib + offHeapMib + pysparkMib)
    target.put("gpus", amount("gpu").getOrElse(0L))
    target.put("gpu_memory_mib", conf.getOption(GpuMemory).map(JavaUtils.byteStringAsMb).getOrElse(0L))
    target.put("unknown_resources",
      strings((profile.executorResources.keySet -- ResourceProfile.allSupportedExecutorResources - "gpu").toSeq.sorted))
    target
  }

  private def defaultOverheadMib(heapMib: Long, conf: SparkConf): Long = {
    val leastMib = conf.getOption("spark.executor.minMemoryOverhead")
      .map(JavaUtils.byteStringAsMb).getOrElse(384L)
    val factor = conf.getDouble("spark.executor.memoryOverheadFactor", 0.10)
    math.max((heapMib * factor).toLong, leastMib)
  }

  private def environment(sc: SparkContext): JMap[String, String] = {
    val environment = new JMap[String, String]()
    sc.executorEnvs.toSeq.sorted.foreach { case (name, value) => environment.put(name, value) }
    val security = sc.env.securityManager
    if (security.isAuthenticationEnabled()) {
      environment.put(SecurityManager.ENV_AUTH_SECRET, security.getSecretKey())
    }
    sslPasswords(security).foreach { case (name, value) => environment.put(name, value) }
    sc.conf.get(config.EXECUTOR_LIBRARY_PATH).filter(_.nonEmpty).foreach { added =>
      val given = Option(environment.get(LibraryPath)).filter(_.nonEmpty)
      environment.put(LibraryPath, (given.toSeq :+ added).mkString(File.pathSeparator))
    }
    environment
  }

  /** Passwords of RPC over TLS, which must not be in arguments; Spark 3.5 has no such RPC. */
  private def sslPasswords(security: SecurityManager): Map[String, String] =
    Try(security.getClass.getMethod("getEnvironmentForSslRpcPasswords")).toOption
      .map(_.invoke(security).asInstanceOf[Map[String, String]])
      .getOrElse(Map.empty)

  /**
   * An executor that is preempted for a stream finishes its tasks and transfers its blocks to others. That is
   * Spark's decommissioning, which is off by default. Where the user has not set it, it is on for executors only:
   * in the driver it would also change how dynamic allocation removes idle ones.
   */
  def prepareDecommissioning(conf: SparkConf): Unit = if (decommissions(conf)) {
    checkSignal(conf)
    conf.setIfMissing("spark.storage.decommission.enabled", "true")
    // The interval at which Spark searches for blocks to move; its default of 30 s is most of the grace period.
    conf.setIfMissing("spark.storage.decommission.replicationReattemptInterval", "1s")
  }

  /** Executors that cannot handle the signal would die of it, or ignore it. */
  private def checkSignal(conf: SparkConf): Unit = conf.getOption(DecommissionSignal).foreach { name =>
    if (UnhandledSignals(name) || Try(new sun.misc.Signal(name)).isFailure) {
      throw new SparkException(s"HRM: $DecommissionSignal is '$name', which is no signal that a Java program can " +
        "handle; name one without SIG, such as PWR, the default, or USR1")
    }
  }

  def decommissions(conf: SparkConf): Boolean = conf.getBoolean(Decommission, defaultValue = true)

  private def decommissioning(conf: SparkConf): Seq[String] =
    if (decommissions(conf) && !conf.contains(Decommission)) Seq(s"-D$Decommission=true") else Nil

  /** Notifies the node whether to keep shuffle files, which it would otherwise not know. */
  private def shuffleService(conf: SparkConf): Seq[String] =
    if (conf.get(config.SHUFFLE_SERVICE_ENABLED)) Seq("-Dspark.shuffle.service.enabled=true") else Nil

  /**
   * spark-env.sh turns authentication on for masters that it sees. Connections are left open to everybody only where
   * the user says so, not because the master is named in the application's code.
   */
  def checkAuthentication(conf: SparkConf): Unit =
    if (!conf.contains(config.NETWORK_AUTH_ENABLED)) {
      throw new SparkException("HRM: this driver has no secret for its connections, because no spark-submit saw its " +
        "hrm:// master, which the application itself names; name it with --master, in spark-defaults.conf or in the " +
        "variable MASTER; or set spark.authenticate=true and spark.authenticate.secret, or spark.authenticate=false " +
        "to go without, in the application")
    }

  /** The node sets -XX:ActiveProcessorCount in its place: it knows the cores of each executor's profile. */
  private def limitProcessors(conf: SparkConf): Seq[String] =
    if (conf.getBoolean(LimitProcessors, defaultValue = false)) Seq(s"-D$LimitProcessors=true") else Nil

  /** Nothing here reads these. Without this check, tasks would fail for files that were named and never came. */
  def checkListsOfYarn(conf: SparkConf): Unit = ListsOfYarn.foreach { case (name, ours) =>
    conf.getOption(name).filter(_.trim.nonEmpty).foreach { value =>
      throw new SparkException(s"HRM: $name is read by YARN alone; set $ours=$value in its place, which counts on " +
        "YARN, too")
    }
  }

  /** The nodes' shuffle services admit only applications with a secret of their own. */
  def checkShuffleService(conf: SparkConf): Unit =
    if (conf.get(config.SHUFFLE_SERVICE_ENABLED) && !conf.getBoolean("spark.authenticate", defaultValue = false)) {
      throw new SparkException("HRM: spark.shuffle.service.enabled needs spark.authenticate=true, which is the " +
        "default: the shuffle services of HRM's nodes serve only applications with a secret; unset one of the two")
    }

  /** {{APP_ID}} and {{EXECUTOR_ID}} stay as they are: the node replaces them. */
  def javaOptions(conf: SparkConf): JList[String] = strings(
    Utils.sparkJavaOpts(conf, SparkConf.isExecutorStartupConf _) ++
      decommissioning(conf) ++
      shuffleService(conf) ++
      limitProcessors(conf) ++
      Kerberos.javaOptions(conf) ++
      // Executors receive it later anyway; the node needs it before it takes a warm JVM.
      conf.getOption(UserFirst).filter(_ != "false").map(value => s"-D$UserFirst=$value") ++
      Utils.splitCommandString(JavaModuleOptions.defaultModuleOptions()) ++
      conf.get(config.EXECUTOR_JAVA_OPTIONS).toSeq.flatMap(o => Utils.splitCommandString(o)))

  def strings(values: Seq[String]): JList[String] = {
    val list = new JList[String]()
    values.foreach(list.add)
    list
  }
}
