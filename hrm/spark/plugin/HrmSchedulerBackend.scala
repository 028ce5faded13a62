package org.apache.spark.scheduler.cluster.hrm

/*
 * The locks of a driver with this plugin, in the order in which a thread may take them.
 *
 * Spark's, from the outside in:
 *   1. SparkContext's constructor lock. SparkContext.getOrCreate holds it while HRM starts.
 *   2. TaskSchedulerImpl
 *   3. CoarseGrainedSchedulerBackend, this object (Spark's withLock takes 2, then 3)
 *   4. ResourceProfile
 * HRM's, each a private object named `lock`, all leaves:
 *      EventQueue, HrmListener, StreamDetector, AppMasterSupervisor
 *
 * A leaf is held for a few fields of its own class and nothing else. Its holder takes no other lock,
 * HRM's or Spark's, calls no other object, does no IO, and waits only to be notified of that lock
 * itself. So no cycle can include HRM's locks, whatever Spark does. State shared by several threads
 * is behind one of these, or immutable behind a volatile field (StreamDetector.current).
 *
 * Callers of this plugin, and the locks they hold:
 *   SparkContext                  constructor, start(), isReady(), stop(): 1 at most
 *   Spark or the user, to change the executors
 *                                 doRequestTotalExecutors: 3; doKillExecutors: 2 and 3
 *   the DriverEndpoint's thread   onDisconnected: nothing
 *   the listener bus, queue hrm   HrmListener: nothing. SparkContext.stop() waits for that thread
 *                                 without a limit, so it must not wait for what stop() holds
 *   py4j, a thread per connection DriverBridge, and through it AppMasterListener: nothing
 *   the timer, hrm-backend        starts and ends of AppMasters, abandoned executors and contexts:
 *                                 nothing
 *   hrm-driver-end                ends a driver that lives on after its failure (DriverEnd): nothing
 *   hrm-connect                   rehearses a Connect server, and ends it when it is idle: nothing
 *   Java's watch on processes     hands over to the timer: nothing
 *   LauncherBackend's threads     LauncherLink: nothing
 * Those that hold nothing take Spark's locks through Spark's methods: 2 in wakeScheduler and
 * scheduler.error, 3 in introduction and onDisconnected.
 *
 * LauncherLink is called by start(), stop() and throwProblem(), with 1 at most: it writes to a socket,
 * and its close() waits for Spark's reader of that socket, which ends when the socket is closed.
 *
 * The limits of all waits: an AppMaster's start and start() itself, each
 * spark.hrm.registration.timeout; its end, spark.hrm.stop.timeout; a poll, EventQueue.PollMaxMs;
 * Spark's own calls in stop(), spark.rpc.askTimeout.
 */

import java.util.{ArrayList => JList, LinkedHashMap => JMap}
import java.util.concurrent.{CountDownLatch, RejectedExecutionException, TimeUnit}
import java.util.concurrent.atomic.{AtomicBoolean, AtomicReference}

import scala.concurrent.Future
import scala.util.Try
import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkException}
import org.apache.spark.deploy.security.HadoopDelegationTokenManager
import org.apache.spark.internal.config
import org.apache.spark.launcher.SparkAppHandle.State
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.rpc.{RpcAddress, RpcCallContext, RpcEndpointAddress}
import org.apache.spark.scheduler.{ExecutorDecommission, ExecutorDecommissionInfo, ExecutorExited, ExecutorProcessLost}
import org.apache.spark.scheduler.TaskSchedulerImpl
import org.apache.spark.scheduler.cluster.{CoarseGrainedSchedulerBackend, SchedulerBackendUtils}
import org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages.RegisterExecutor
import org.apache.spark.util.ThreadUtils

/**
 * The scheduler backend of one application, whose settings HrmSettings has checked.
 *
 * Its life: the constructor starts the AppMaster, which registers while Spark finishes its own set-
 * up; start() waits for the application's id, within a limit; from then on targets and kills flow
 * to the AppMaster and executors' ends flow back; stop() reports how the application ended and
 * waits, within a limit, until the master has the report. An AppMaster that dies is replaced and
 * finds its executors again.
 */
private[hrm] class HrmSchedulerBackend(scheduler: TaskSchedulerImpl, sc: SparkContext, master: String)
  extends CoarseGrainedSchedulerBackend(scheduler, sc.env.rpcEnv) with AppMasterListener {

  private val registrationMs = conf.getTimeAsMs("spark.hrm.registration.timeout", "30s")
  private val stopMs = conf.getTimeAsMs("spark.hrm.stop.timeout", "5s")
  private val lossReasonFixedMs = conf.getOption(HrmSchedulerBackend.LossReason)
    .map(_ => conf.getTimeAsMs(HrmSchedulerBackend.LossReason))

  private val driverGraceMs = DriverEnd.graceMs(conf)
  DriverEnd.contextBegins()

  private val initialExecutors = SchedulerBackendUtils.getInitialTargetExecutorNumber(conf)
  override protected val minRegisteredRatio: Double =
    conf.get(config.SCHEDULER_MIN_REGISTERED_RESOURCES_RATIO).getOrElse(0.8)

  private val events = new EventQueue
  private val listener = new HrmListener(events, () => wakeScheduler(), () => exclusionsChanged())
  sc.listenerBus.addToQueue(listener, "hrm")

  private val gangMin = firstExecutors("spark.hrm.gang.min")
  private val streamMin = firstExecutors("spark.hrm.stream.min")
  private val inputBytes = conf.getSizeAsBytes("spark.hrm.input.size", "0")
  private val nodeRequirement = NodeRequirement.describe(conf)
  private val earlyFiles = new EarlyFiles(sc)

  @volatile private var appId: Option[String] = None
  @volatile private var nodeTimeoutMs = 0L
  private val problem = new AtomicReference[String]()
  private val answered = new CountDownLatch(1)
  @volatile private var contextReady = false
  @volatile private var begun = false
  private val stopping = new AtomicBoolean(false)
  private val launcher = new LauncherLink(
    conf, () => failed("the program that launched the driver has stopped it"))
  private val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("hrm-backend")
  /** The proof to the master that an AppMaster acts for this application; it never leaves memory here. */
  private val ownershipKey = AppMasterSupervisor.newToken()
  private val appMaster = new AppMasterSupervisor(
    conf, events, listener, this, timer, () => introduction())

  StageProfiles.allow(sc.resourceProfileManager)
  private val givesTokens = Kerberos.givesTokens(conf)
  if (!givesTokens) requestFirst()
  appMaster.start()
  awaitStart()

  override def start(): Unit = {
    begun = true
    // Makes the tracker of exclusions, which takes 2: doRequestTotalExecutors asks for them with 3 held.
    scheduler.excludedNodes()
    launcher.submitted()
    obtainTokens()
    val limitMs = registrationMs + ExecutorLaunch.sendingMs(conf)
    if (!answered.await(limitMs, TimeUnit.MILLISECONDS)) {
      failed(s"the AppMaster has not registered with the HRM master $master within " +
        s"${limitMs / 1000} s; raise spark.hrm.registration.timeout, or see its messages above")
    }
    throwProblem()
    launcher.running(applicationId())
    ConnectServer.attend(sc)
  }

  /** In super.start(); no executor is requested before there are tokens for it. */
  private def obtainTokens(): Unit = {
    try super.start() catch {
      case NonFatal(e) if givesTokens =>
        logError("The delegation tokens", e)
        problem.compareAndSet(null, Kerberos.noTokens(e, "see the driver's log"))
        throwProblem()
    }
    if (givesTokens) requestFirst()
  }

  private def requestFirst(): Unit =
    setTargets(Map(sc.resourceProfileManager.defaultResourceProfile -> initialExecutors))

  /** Public, as it is inherited from a trait since Spark 4.3, and from the base class before. */
  override def createTokenManager(): Option[HadoopDelegationTokenManager] = Some(
    new HadoopDelegationTokenManager(conf, Kerberos.hadoopSettings(sc.hadoopConfiguration), driverEndpoint))

  override def applicationId(): String = appId.getOrElse(super.applicationId())

  override def getDriverLogUrls: Option[Map[String, String]] =
    DriverContainer.logUrls(conf, applicationId())

  override def getDriverAttributes: Option[Map[String, String]] =
    DriverContainer.attributes(applicationId())

  override def sufficientResourcesRegistered(): Boolean =
    totalRegisteredExecutors.get() >= initialExecutors * minRegisteredRatio

  /**
   * Called in a loop while the SparkContext waits for its first executors: a refusal ends that wait.
   * One that comes before contextReady is set must be thrown from here, so it is checked again.
   */
  override def isReady(): Boolean = {
    throwProblem()
    if (!contextReady && super.isReady()) {
      contextReady = true
      throwProblem()
    }
    contextReady
  }

  override protected def doRequestTotalExecutors(
      totals: Map[ResourceProfile, Int]): Future[Boolean] = {
    setTargets(totals)
    Future.successful(true)
  }

  override protected def doKillExecutors(executorIds: Seq[String]): Future[Boolean] = {
    events.kill(executorIds)
    Future.successful(true)
  }

  override protected def createDriverEndpoint(): DriverEndpoint = new HrmDriverEndpoint()

  override def stop(): Unit = stop(0)

  override def stop(exitCode: Int): Unit = {
    if (stopping.compareAndSet(false, true)) {
      val failure = Option(problem.get()).orElse(failureAtShutdown(exitCode))
      appMaster.finishing()
      events.endTargets()
      // Executors first: they end by themselves before the master removes their containers.
      try super.stop() finally {
        failure match {
          case None => events.setFinish("SUCCEEDED", "")
          case Some(why) => events.setFinish(unsuccessful, why)
        }
        appMaster.stop(stopMs)
        timer.shutdownNow()
        launcher.ended(if (failure.isEmpty) State.FINISHED else State.FAILED)
      }
    }
  }

  // Messages of the AppMaster. Each arrives on a thread of its gateway.

  override def registered(applicationId: String): Unit = {
    earlyFiles.serve()
    appId = Some(applicationId)
    appMaster.registered()
    answered.countDown()
  }

  override def failed(message: String): Unit = {
    if (problem.compareAndSet(null, message)) {
      answered.countDown()
      wakeScheduler()
      // A SparkContext under construction calls isReady(), which throws.
      if (contextReady && !stopping.get()) stopApplication(message)
    }
  }

  /** Its jobs fail with the reason; Spark may not have submitted its stage yet, and then this is repeated. */
  override def profileRefused(profileId: Int, message: String): Unit =
    listener.stagesOf(profileId).foreach { stageId =>
      try sc.cancelStage(stageId, s"HRM: $message") catch {
        case NonFatal(e) => logDebug(s"stage $stageId is not cancelled: $e") // the context has stopped
      }
    }

  override def detached(): Unit = appMaster.detached()

  override def nodeTimeout(timeoutMs: Int): Unit = nodeTimeoutMs = timeoutMs.toLong

  /**
   * Decommissioned are those that have nothing to do, then the youngest: they take no more tasks, and end once theirs
   * are done. Where the user has turned decommissioning off, those end that have nothing to do now. What Spark wants in
   * all stays as it is; the AppMaster requests no more than the limit of it.
   */
  override def limitExecutors(most: Int): Unit = {
    val own = getExecutorIds().filter(id =>
      getExecutorResourceProfileId(id) == ResourceProfile.DEFAULT_RESOURCE_PROFILE_ID && !decommissions(id))
    val surplus = own.sortBy(id => (scheduler.isExecutorBusy(id), -Try(id.toLong).getOrElse(0L))) // of Scala 2.12, too
      .take(own.size - most)
    if (surplus.nonEmpty && !ExecutorLaunch.decommissions(conf))
      killExecutors(surplus, adjustTargetNumExecutors = false, countFailures = false, force = false)
    else if (surplus.nonEmpty) {
      val why = ExecutorDecommissionInfo(s"the master allows the application $most executors now")
      decommissionExecutors(
        surplus.map(_ -> why).toArray, adjustTargetNumExecutors = false, triggeredByExecutor = false)
    }
  }

  override def executorStarted(executorId: String, node: String): Unit =
    logInfo(s"Executor $executorId started on node $node")

  override def executorEnded(
      executorId: String,
      exitCode: Int,
      reason: String,
      causedByApp: Boolean,
      lostHost: String): Unit = {
    events.ended(executorId)
    try {
      explainDecommission(executorId, reason)
      if (lostHost.isEmpty) removeExecutor(executorId, ExecutorExited(exitCode, causedByApp, reason))
      else {
        removeExecutor(executorId, ExecutorProcessLost(reason, Some(lostHost), causedByApp))
        // Also where Spark no longer knows this executor: a shuffle service may have kept its files.
        removeWorker(lostHost, lostHost, reason)
      }
    } catch {
      // Spark's endpoint is gone, and needs no executor. The AppMaster must not take that for the
      // end of the driver, which has yet to report how the application ended.
      case NonFatal(e) if stopping.get() => logDebug(s"executor $executorId has ended late: $e")
    }
  }

  def trained(epoch: TrainingReports.Epoch): Unit = listener.trained(epoch)

  override def excludedHosts: Set[String] = scheduler.excludedNodes()

  /** Spark posts the event before it changes the set, so the set is read once more a little later. */
  private def exclusionsChanged(): Unit = {
    events.progressed()
    onTimer(HrmSchedulerBackend.ExclusionsAgainMs)(events.progressed())
  }

  private def throwProblem(): Unit = Option(problem.get()).foreach { message =>
    finish(message)
    launcher.ended(State.FAILED)
    throw new SparkException(s"HRM: $message")
  }

  /** The SparkContext cannot be made, and will never call stop(). */
  def abandon(why: String): Unit = if (stopping.compareAndSet(false, true)) {
    finish(why)
    timer.shutdownNow()
  }

  private def unsuccessful: String = if (launcher.stopRequested) "KILLED" else "FAILED"

  private def finish(failure: String): Unit = {
    appMaster.finishing()
    events.setFinish(unsuccessful, failure)
    appMaster.stop(stopMs)
  }

  /**
   * Spark makes more of itself before it calls start(), such as the DAGScheduler. Where that fails,
   * it stops the context without this backend, whose AppMaster would stay.
   */
  private def awaitStart(): Unit = onTimer(HrmSchedulerBackend.StartCheckMs) {
    if (!begun) {
      if (sc.isStopped) abandon("the SparkContext could not be made; see the driver's log")
      else awaitStart()
    }
  }

  private def stopApplication(message: String): Unit = {
    DriverEnd.afterFailure(message, driverGraceMs)
    onTimer(0) {
      try scheduler.error(s"HRM: $message") catch {
        case e: SparkException => logError(e.getMessage)
      } finally sc.stopInNewThread()
    }
  }

  /** An application that an exception ends does not report it; its last job does. */
  private def failureAtShutdown(exitCode: Int): Option[String] =
    if (!contextReady) Some("the SparkContext could not be made; see the driver's log")
    else if (exitCode != 0) Some(s"the application ended with exit code $exitCode")
    else if (org.apache.spark.util.ShutdownHookManager.inShutdown()) {
      listener.lastFailure.map(why => s"the driver ended after a failed job: $why")
    } else None

  private def wakeScheduler(): Unit = scheduler.synchronized(scheduler.notifyAll())

  private def onTimer(delayMs: Long)(action: => Unit): Unit =
    try timer.schedule((() => action): Runnable, delayMs, TimeUnit.MILLISECONDS)
    catch { case _: RejectedExecutionException => } // stop() has ended the timer

  private def setTargets(totals: Map[ResourceProfile, Int]): Unit = {
    val list = new JList[JMap[String, Any]]()
    totals.toSeq.sortBy(_._1.id).foreach { case (profile, count) =>
      val target = ExecutorLaunch.resources(profile, count, conf)
      preferHosts(target, profile)
      list.add(target)
    }
    events.setTargets(list)
  }

  /**
   * The hosts of the blocks that waiting tasks of this profile read, and how many executors those tasks occupy. Both
   * are in fields that Spark sets before it requests totals.
   */
  private def preferHosts(target: JMap[String, Any], profile: ResourceProfile): Unit = {
    val tasksAt = rpHostToLocalTaskCount.getOrElse(profile.id, Map.empty[String, Int])
    val tasks = numLocalityAwareTasksPerResourceProfileId.getOrElse(profile.id, 0)
    if (tasks > 0 && tasksAt.nonEmpty) {
      val excluded = excludedHosts
      val best = tasksAt.toSeq.filterNot { case (host, _) => excluded(host) }
        .sortBy { case (host, count) => (-count, host) }.take(HrmSchedulerBackend.HostsMax)
      val hosts = new JList[String]()
      best.foreach { case (host, _) => hosts.add(host) }
      target.put("hosts", hosts)
      target.put("local_executors", math.ceil(tasks.toDouble / profile.maxTasksPerExecutor(conf)).toInt)
    }
  }

  /** All that a new AppMaster needs to know. */
  private def introduction(): JMap[String, Any] = {
    val driver = RpcEndpointAddress(
      RpcAddress(conf.get(config.DRIVER_HOST_ADDRESS), conf.get(config.DRIVER_PORT)),
      CoarseGrainedSchedulerBackend.ENDPOINT_NAME)
    val hello = new JMap[String, Any]()
    hello.put("master", master)
    hello.put("token_file", conf.get("spark.hrm.token.file", ""))
    hello.put("tls_ca", conf.get("spark.hrm.tls.ca", ""))
    hello.put("allow_clear_text", conf.get("spark.hrm.allowClearText", ""))
    hello.put("application_id", appId.getOrElse(""))
    hello.put("name", sc.appName)
    hello.put("user", sc.sparkUser)
    QueueSettings.describe(conf, hello)
    hello.put("spark_version", sc.version)
    hello.put("driver_host", conf.get(config.DRIVER_HOST_ADDRESS))
    hello.put("web_url", sc.uiWebUrl.getOrElse(""))
    hello.put("class", conf.get("spark.hrm.class", ""))
    hello.put("start", conf.get("spark.hrm.start", ""))
    hello.put("gang_min", gangMin)
    hello.put("stream_min", streamMin)
    hello.put("input_bytes", inputBytes)
    hello.put("submission_key", HrmSchedulerBackend.submissionKey(this))
    hello.put("ownership_key", ownershipKey)
    hello.put("launch", ExecutorLaunch.describe(sc, driver.toString))
    earlyFiles.describe(hello)
    hello.put("node", nodeRequirement)
    hello.put("registration_timeout_ms", registrationMs)
    hello.put("master_timeout_ms", conf.getTimeAsMs("spark.hrm.master.timeout", "1h"))
    hello.put("stop_timeout_ms", stopMs)
    FailureLimits.describe(conf, hello)
    hello.put("locality_wait_ms", conf.getTimeAsMs("spark.hrm.locality.wait", "3s"))
    hello.put("retry_delay_ms", conf.getTimeAsMs("spark.hrm.executor.retry.delay", "100ms"))
    hello.put("retry_delay_max_ms", conf.getTimeAsMs("spark.hrm.executor.retry.delayMax", "10s"))
    hello.put("understands", ExecutorLaunch.strings(DriverBridge.Understands))
    hello.put("settings", ExecutorLaunch.settings(conf))
    val executors = new JMap[String, Any]()
    if (appId.isDefined) {
      getExecutorIds().foreach(id => executors.put(id, getExecutorResourceProfileId(id)))
    }
    hello.put("executors", executors)
    hello
  }

  /**
   * An agent that lives reports an end within moments, and the master reports those of a node that is lost
   * once it has been silent for long enough. Without a master no reason comes soon: then tasks do not wait for it.
   */
  private def lossReasonMs: Long =
    lossReasonFixedMs.getOrElse(nodeTimeoutMs + HrmSchedulerBackend.ReportMs)

  private def firstExecutors(name: String): Int = conf.getInt(name, 0)

  private def decommissions(executorId: String): Boolean =
    synchronized(executorsPendingDecommission.contains(executorId))

  /**
   * An executor that a signal has decommissioned can only say so. Why it was stopped is then what Spark gives as the
   * reason of its removal; where Spark itself has decommissioned it, Spark's reason stays.
   */
  private def explainDecommission(executorId: String, reason: String): Unit = synchronized {
    executorsPendingDecommission.get(executorId)
      .filter(_.message == s"Executor $executorId is decommissioned.")
      .foreach(info => executorsPendingDecommission(executorId) = info.copy(message = reason))
  }

  /**
   * Waits for HRM's reason of an executor's end before Spark removes it: exit codes decide blame. Where none
   * comes, nobody is to blame. One that is decommissioned gets no more tasks and is to blame for nothing: its
   * reason is only for people to read, and is awaited for a moment.
   */
  private class HrmDriverEndpoint extends DriverEndpoint {
    /**
     * Spark rejects an executor of a host that it excludes, as one that was placed before HRM knew. It is released
     * here, so that its end counts neither against the application nor against its node.
     */
    override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
      val ofSpark = super.receiveAndReply(context)
      val release: PartialFunction[Any, Any] = {
        case registers: RegisterExecutor if excludedHosts(registers.hostname) =>
          events.kill(Seq(registers.executorId))
          registers
      }
      release.orElse[Any, Any] { case message => message }.andThen(ofSpark)
    }

    /** While the application stops its executors leave one by one; nothing is to be scheduled again. */
    override def onDisconnected(remoteAddress: RpcAddress): Unit =
      addressToExecutorId.get(remoteAddress).filter(_ => !stopping.get()).foreach { executorId =>
        // Without a host: whether the whole machine goes is not known here.
        if (decommissions(executorId))
          onTimer(math.min(lossReasonMs, HrmSchedulerBackend.DepartureMs))(
            removeExecutor(executorId, ExecutorDecommission(None)))
        else if (disableExecutor(executorId)) {
          val silence = "the executor's connection broke, and its node has not said why"
          onTimer(lossReasonMs)(
            removeExecutor(executorId, ExecutorProcessLost(silence, None, causedByApp = false)))
        }
      }
  }
}

private[hrm] object HrmSchedulerBackend {
  private val HostsMax = 32
  private val StartCheckMs = 500L
  private val LossReason = "spark.hrm.executor.lossReasonTimeout"
  private val ReportMs = 5000L // from the node's agent through the master to here
  private val ExclusionsAgainMs = 200L
  private val DepartureMs = 1000L

  private val driver = java.util.UUID.randomUUID().toString

  /** Names one SparkContext of one driver. */
  def submissionKey(backend: HrmSchedulerBackend): String = s"$driver-${System.identityHashCode(backend)}"
}
